"""The REST API of discovery."""
