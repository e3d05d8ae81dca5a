"""What a run can be given: a teacher of one's own."""
