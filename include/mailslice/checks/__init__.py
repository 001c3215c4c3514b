"""Gates of duties by Great Expectations, and their Data Docs. Knows no duty and no store."""
