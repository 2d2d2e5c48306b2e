package monitoring_test

import (
	"regexp"
	"slices"
)

type uses struct {
	labels  map[string][]string // of each metric, those its selectors name
	grouped []string            // labels of by, on and group_left clauses
}

var (
	promqlNoise = regexp.MustCompile(`\[[^\]]*\]`)
	promqlToken = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[0-9][0-9a-zA-Z.]*|[a-zA-Z_:][a-zA-Z0-9_:]*|=~|!~|!=|[{}(),=]`)
	promqlName  = regexp.MustCompile(`^[a-zA-Z_:]`)
)

// usesOf reads an expression as far as it has to be read: a name before a bracket or a clause is a function,
// names in brackets behind a clause are labels, and every other name is a metric.
func usesOf(expr string) uses {
	u := uses{labels: map[string][]string{}}
	tokens := promqlToken.FindAllString(promqlNoise.ReplaceAllString(expr, ""), -1)
	next := func(i int) string {
		if i+1 < len(tokens) {
			return tokens[i+1]
		}
		return ""
	}
	clauses := []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
	words := []string{"and", "or", "unless", "bool", "offset"}
	for i := 0; i < len(tokens); i++ {
		switch token := tokens[i]; {
		case !promqlName.MatchString(token) || slices.Contains(words, token):
		case slices.Contains(clauses, token):
			for i += 2; i < len(tokens) && tokens[i] != ")"; i++ {
				if tokens[i] != "," {
					u.grouped = append(u.grouped, tokens[i])
				}
			}
		case next(i) == "(" || next(i) == "by" || next(i) == "without": // a function
		default:
			u.labels[token] = append(u.labels[token], []string{}...)
			if next(i) != "{" {
				continue
			}
			for i += 2; i < len(tokens) && tokens[i] != "}"; i++ {
				if promqlName.MatchString(tokens[i]) {
					u.labels[token] = append(u.labels[token], tokens[i])
				}
			}
		}
	}
	return u
}
