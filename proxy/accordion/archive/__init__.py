"""The archive of content that left the window: stored whole, under ids that the history shows."""
