from dgnet_paper.cli import main

main()
