"""What left the window: kept whole, under ids that the list shows."""
