"""What a person types: `weir …`."""
