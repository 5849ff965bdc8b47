"""Import of clients' history: registries, plan, run. Knows no concrete client and no concrete dataset."""
