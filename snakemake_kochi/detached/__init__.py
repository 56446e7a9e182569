"""Controllers that go on without a terminal: started, found again, followed and stopped."""
