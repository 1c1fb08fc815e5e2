"""What people are told: status, drift, metrics, the cause of a failure."""
