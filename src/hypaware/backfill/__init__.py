"""Import of clients' history: registries, survey, run. Knows no concrete client and no concrete dataset."""
