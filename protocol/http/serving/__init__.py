"""HTTP server with limits on what one client can occupy.

It limits the number of connections, the memory for request heads, bodies and answers, and the time that each may take.
"""
