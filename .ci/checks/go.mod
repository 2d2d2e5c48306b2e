module github.com/pullgate/pullgate/checks

go 1.26.0
