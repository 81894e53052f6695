from dgnet.cli import main

main()
