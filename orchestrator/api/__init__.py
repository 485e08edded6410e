"""The REST API: thin routes over the stores. Access is checked before a body is parsed."""
