"""The REST API: thin routes over the stores. Who may call what is decided before a body is read into anything."""
