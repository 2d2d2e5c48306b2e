package condition

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jmespath-community/go-jmespath/pkg/functions"
	"github.com/jmespath-community/go-jmespath/pkg/interpreter"
	"github.com/jmespath-community/go-jmespath/pkg/parsing"
)

const (
	maxConditions = 50   // bounds the conditions on one document
	maxExpression = 1024 // bounds an expression, in bytes
	maxNodes      = 100  // bounds the steps of an expression: each may go through the whole document
)

// The functions that read the clock.
const (
	timeSince = "time_since"
	timeNow   = "time_now_utc"
)

// argumentsOf says how many arguments each function of expressions has.
//
//nolint:gochecknoglobals // a constant table
var argumentsOf = map[string]int{
	"contains": 2, "ends_with": 2, "length": 1, "max": 1, "min": 1, "starts_with": 2, timeNow: 0, timeSince: 3,
	"to_number": 1,
}

// Functions returns the names of the functions of expressions.
func Functions() []string { return slices.Sorted(maps.Keys(argumentsOf)) }

type expression struct{ node parsing.ASTNode }

func compileExpression(text string) (*expression, error) {
	if len(text) > maxExpression {
		return nil, fmt.Errorf("an expression has %d bytes; must have at most %d", len(text), maxExpression)
	}
	node, err := parsing.NewParser().Parse(text)
	if err != nil {
		return nil, fmt.Errorf("{{%s}} is not an expression: %w", text, syntax(text, err))
	}
	nodes := 0
	if err := check(node, &nodes); err != nil {
		return nil, fmt.Errorf("{{%s}}: %w", text, err)
	}
	return &expression{node}, nil
}

// syntax returns an error of the parser with its place as a number of characters; the parser draws it in a second line.
func syntax(text string, err error) error {
	var at parsing.SyntaxError
	if !errors.As(err, &at) {
		return err
	}
	after := text[:min(max(at.Offset, 0), len(text))]
	if len(after) == 0 {
		return fmt.Errorf("%s at its beginning", strings.TrimPrefix(at.Error(), "SyntaxError: "))
	}
	return fmt.Errorf("%s after %q", strings.TrimPrefix(at.Error(), "SyntaxError: "), after)
}

func check(n parsing.ASTNode, nodes *int) error {
	if *nodes++; *nodes > maxNodes {
		return fmt.Errorf("has more than %d steps; use shorter conditions", maxNodes)
	}
	switch n.NodeType { //nolint:exhaustive // the default is for the others
	case parsing.ASTFunctionExpression:
		name, _ := n.Value.(string)
		switch want, ok := argumentsOf[name]; {
		case !ok:
			return fmt.Errorf("there is no function %s; use one of %s", name, strings.Join(Functions(), ", "))
		case len(n.Children) != want:
			return fmt.Errorf("the function %s has %d arguments; must have %d", name, len(n.Children), want)
		}
	case parsing.ASTLiteral:
		switch n.Value.(type) {
		case []any, map[string]any:
			return errors.New("a literal is a list or an object; write it in value, with AnyIn or AllIn")
		}
	case parsing.ASTComparator, parsing.ASTCurrentNode, parsing.ASTField, parsing.ASTFilterProjection, parsing.ASTFlatten,
		parsing.ASTIdentity, parsing.ASTIndex, parsing.ASTIndexExpression, parsing.ASTOrExpression,
		parsing.ASTAndExpression, parsing.ASTNotExpression, parsing.ASTPipe, parsing.ASTProjection,
		parsing.ASTSubexpression:
	default:
		// Lists and objects that an expression makes multiply what it reads, $ and let start again at the document, and
		// the order of the values of an object is random.
		return errors.New("only fields, indexes, lists with [] and [*], filters, comparisons, || && !, literals, " +
			"pipes and functions are supported; write a condition for each value")
	}
	for _, c := range n.Children {
		if err := check(c, nodes); err != nil {
			return err
		}
	}
	return nil
}

// readsClock reports whether the value of an expression depends on when it is evaluated.
func readsClock(n parsing.ASTNode) bool {
	return isCall(n, timeNow) || isCall(n, timeSince) && !isText(n.Children[2]) ||
		slices.ContainsFunc(n.Children, readsClock)
}

// isCall reports whether a node calls a function; it has the arguments of the function then.
func isCall(n parsing.ASTNode, function string) bool {
	return n.NodeType == parsing.ASTFunctionExpression && n.Value == function
}

// isText reports whether a node is a literal other than the empty text, which stands for the present time.
func isText(n parsing.ASTNode) bool {
	text, _ := n.Value.(string)
	return n.NodeType == parsing.ASTLiteral && text != ""
}

func (e *expression) evaluate(data any, now time.Time) (any, error) { return run(e.node, data, now) }

func run(node parsing.ASTNode, data any, now time.Time) (v any, err error) {
	defer func() {
		if recover() != nil { // the library compares what cannot be compared
			v, err = nil, errors.New("a function cannot be applied to the value")
		}
	}()
	text := functions.ArgSpec{Types: []functions.JpType{functions.JpString}}
	known := append(functions.GetDefaultFunctions(), // check has refused those that argumentsOf does not have
		functions.FunctionEntry{Name: timeNow, Handler: func([]any) (any, error) {
			return now.UTC().Format(time.RFC3339), nil
		}},
		functions.FunctionEntry{Name: elements, Handler: elementsOf},
		functions.FunctionEntry{Name: timeSince, Arguments: []functions.ArgSpec{text, text, text}, Handler: since(now)})
	c := &caller{FunctionCaller: interpreter.NewFunctionCaller(known...)}
	v, err = interpreter.NewInterpreter(data, c, nil).Execute(node, data)
	return v, cmp.Or(err, c.failed)
}

// A caller keeps the failure of a function. The interpreter takes it for an absent value to the left of a filter.
type caller struct {
	interpreter.FunctionCaller

	failed error
}

// CallFunction calls a function by its name.
func (c *caller) CallFunction(name string, arguments []any) (any, error) {
	v, err := c.FunctionCaller.CallFunction(name, arguments)
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		err = errors.New("a number is not finite")
	}
	if err != nil {
		text := err.Error() // it has the whole argument
		c.failed = errors.New(text[:min(len(text), maxShown)])
		return nil, c.failed
	}
	return v, nil
}

func since(now time.Time) functions.JpFunction {
	return func(arguments []any) (any, error) {
		d, err := between(arguments, now)
		return d.String(), err
	}
}

// maxAhead is how much later than now the times of statements may be, because clocks differ.
const maxAhead = 5 * time.Minute

// between returns the time between two times. The arguments of time_since are their layout, "" for RFC 3339, the
// earlier one, and the later one, "" for now.
func between(arguments []any, now time.Time) (time.Duration, error) {
	layout, _ := arguments[0].(string)
	earlier, err := parseTime(layout, arguments[1], now)
	if err != nil {
		return 0, err
	}
	later := now
	if arguments[2] != "" {
		if later, err = parseTime(layout, arguments[2], now); err != nil {
			return 0, err
		}
	}
	return later.Sub(earlier), nil
}

func parseTime(layout string, value any, now time.Time) (time.Time, error) {
	if layout == "" {
		layout = time.RFC3339
	}
	text, _ := value.(string)
	t, err := time.Parse(layout, text)
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("%s is not a time as in %s", shown(text), shown(layout))
	case t.Sub(now) > maxAhead:
		return time.Time{}, fmt.Errorf("%s is in the future", text)
	}
	return t, nil
}
