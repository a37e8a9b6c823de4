"""A machine in one thread: its clock is a number, its sockets are queues, and all delays follow from one seed."""
