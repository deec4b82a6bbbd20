"""What clients and people talk to: the proxied protocols, the API."""
