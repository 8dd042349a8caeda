"""The child process: one instance of one model. Entry, loop, handlers and runtimes; holds no policy."""
