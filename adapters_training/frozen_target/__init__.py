"""What trainings on the hidden states of a frozen target share: settings, data, its forward, memory, command."""
