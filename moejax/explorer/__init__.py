"""Laws, sliders and charts as one HTML file that needs no server and no network."""
