"""What stands for messages that left the window: their schema, their checks, and the writer that needs no model."""
