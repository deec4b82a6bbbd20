"""The web page at `/accordion/`: HTML made by the server, for one tenant at a time."""
