"""One request, step by step: receive, identify, measure, prepare, send, respond."""
