"""Requests of clients: tokens, admission, and answers on their way back."""
