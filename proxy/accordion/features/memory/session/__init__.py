"""Session memories: the text with which another agent continues a session."""
