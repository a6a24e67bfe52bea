"""Clients: each file translates one library's types into the shared rules, and nothing more.

Nothing is imported before it is used: ``import abate.clients.httpx`` needs httpx, and so on.
"""
