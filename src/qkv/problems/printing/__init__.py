"""Solutions, sheets and exports of the bank."""
