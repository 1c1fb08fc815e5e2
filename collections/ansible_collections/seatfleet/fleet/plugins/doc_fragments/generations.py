from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  generations:
    description: Rendered generations, from P(seatfleet.fleet.seat_generations#filter).
    type: list
    elements: dict
    required: true
    suboptions:
      seat:
        description: Name of the seat.
        type: str
        required: true
      name:
        description: Name of the generation, 12 hexadecimal digits.
        type: str
        required: true
      release_path:
        description: Where its release is installed.
        type: path
        required: true
      files:
        description: File names to texts.
        type: dict
        required: true
"""
