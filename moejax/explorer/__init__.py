"""Build the explorer: laws, sliders and charts in one HTML file that needs no server and no network."""
