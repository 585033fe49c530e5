"""Where hosts stand in the network: files of many kinds become one graph, and the best ring over its hosts is found."""
