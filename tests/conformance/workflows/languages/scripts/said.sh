echo said by a script
