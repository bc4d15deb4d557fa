"""What several tests share: references, generators of cases, processes and servers."""
