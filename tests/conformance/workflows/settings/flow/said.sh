echo said
