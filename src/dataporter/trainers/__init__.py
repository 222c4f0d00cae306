"""Integrations with trainers. Each module imports only the framework that it is named after."""
