"""What is left out of a corpus before it is tokenised: each rule a setting, each counted."""
