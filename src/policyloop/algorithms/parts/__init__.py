"""The parts algorithms are made of. Each file: one slot, its classes and the table that config names them by."""
