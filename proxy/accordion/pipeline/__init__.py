"""The steps of one request: receive, identify, measure, prepare, send, respond."""
