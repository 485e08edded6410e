return reply{}
