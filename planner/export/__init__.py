"""Plans in the formats of training frameworks."""
