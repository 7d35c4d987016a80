"""The polyhedra game of host and agent, and Newton polyhedra."""

from palestra.games.polyhedra.newton import newton_vertices as newton_vertices
