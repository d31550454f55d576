"""`rpeg-calib`: hardware files from measurements, and what they say."""
