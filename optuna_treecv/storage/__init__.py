"""The database: its tables, evaluations, shared models and leases."""
