"""What differs between platforms, as values: a class in a file for each launcher, container engine and accelerator."""
