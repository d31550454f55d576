"""The studies: what the compiler's plans and its search are worth, figure by figure."""
