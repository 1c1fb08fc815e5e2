"""What operators write: seats, catalogues and the fleet they make, checked before anything is touched."""
