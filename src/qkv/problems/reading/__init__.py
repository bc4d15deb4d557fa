"""Questions as they stand in an assignment or a chat: numbers, matrices, parts."""
