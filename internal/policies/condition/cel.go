package condition

import (
	"fmt"
	"maps"
	resyntax "regexp/syntax"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	celop "github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// The limits of expressions in CEL. Those of the cost are the limits of kube-apiserver.
const (
	maxExpressions = 64
	maxCEL         = 8 << 10
	maxNested      = 64
	costOfOne      = 1_000_000  // of one evaluation of an expression
	costOfAll      = 10_000_000 // of all evaluations of a program for an image or a pod
	interruptEvery = 100        // how many iterations are between two looks at the context
	maxList        = 100_000    // how many elements a sum of lists has
	maxRegexp      = 1000       // instructions of a program for a regular expression
)

// A program is compiled. It is immutable.
type program struct {
	from                                       *requirement.Program
	variables, images, conditions, validations []compiledExpression
	annotations                                []compiledExpression
	// payloads are the attestations whose content the validations can read. readsImage says that they read what is
	// known about an image, readsClock that they read the clock.
	payloads               []string
	readsImage, readsClock bool
	reads                  []string // the paths of the fields of the pod, if from.Known is not nil
}

type compiledExpression struct {
	requirement.Expression
	cel.Program

	message cel.Program // nil if there is none
}

// A knownVariable has what is known of a variable, whose expression can be long if the variables in it are resolved.
type knownVariable struct {
	raw ast.Expr // with macros as they are written
	// images and payload say what it reads, list and separable what it is; see the methods of celCompiler.
	images, payload, list, separable bool
}

// A celCompiler compiles the expressions of one program.
type celCompiler struct {
	*program

	env    *cel.Env
	parser *cel.Env // which leaves macros as they are written
	vars   map[string]knownVariable
	// signers are the attestors that expressions ask for about an attestation, "" if they cannot be told.
	signers map[string][]string
	errs    field.ErrorList
}

func compileProgram(from *requirement.Program) (*program, field.ErrorList) {
	c := celCompiler{
		program: &program{from: from}, vars: map[string]knownVariable{}, signers: map[string][]string{},
	}
	if n := len(from.Expressions()); n > maxExpressions {
		return nil, field.ErrorList{field.TooMany(field.NewPath("spec"), n, maxExpressions)}
	}
	env, err := newEnv(imageFunctions(celImage), cel.Variable("ref", celImage))
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	c.env = env
	c.parser, err = cel.NewEnv(cel.OptionalTypes(), cel.ClearMacros(), cel.ParserRecursionLimit(maxNested))
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	c.images = c.compileAll(from.Images, cel.BoolType)
	options := slices.Concat(imageFunctions(celImage), evidenceFunctions(), clock())
	if from.OnPods {
		options = slices.Concat(imageFunctions(cel.StringType), podFunctions(), clock())
	}
	if c.env, err = newEnv(options); err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	for _, v := range from.Variables {
		compiled, t := c.compile(v, nil)
		if t == nil {
			continue
		}
		if c.env, err = c.env.Extend(cel.Variable("variables."+v.Name, t)); err != nil {
			c.invalid(v, err.Error())
			continue
		}
		c.variables = append(c.variables, compiled)
	}
	c.conditions = c.compileAll(from.Conditions, cel.BoolType)
	c.validations = c.compileAll(from.Validations, cel.BoolType)
	c.annotations = c.compileAll(from.Annotations, cel.StringType)
	c.oneSigner()
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	return c.program, nil
}

func (c *celCompiler) invalid(e requirement.Expression, why string) {
	c.errs = append(c.errs, field.Invalid(field.NewPath(e.At), e.Text, why))
}

func (c *celCompiler) compileAll(list []requirement.Expression, want *cel.Type) (all []compiledExpression) {
	for _, e := range list {
		if compiled, t := c.compile(e, want); t != nil {
			all = append(all, compiled)
		}
	}
	return all
}

// compile returns the type of the expression too; nil if there is an error, which it reports.
func (c *celCompiler) compile(e requirement.Expression, want *cel.Type) (out compiledExpression, t *cel.Type) {
	before := len(c.errs)
	out = compiledExpression{Expression: e}
	if out.Program, t = c.one(e, want); t != nil {
		c.inspect(e, want != nil)
	}
	if e.MessageText != "" {
		at := strings.TrimSuffix(e.At, "expression") + "messageExpression"
		out.message, _ = c.one(requirement.Expression{Text: e.MessageText, At: at}, cel.StringType)
	}
	if len(c.errs) > before {
		return out, nil
	}
	return out, t
}

func (c *celCompiler) one(e requirement.Expression, want *cel.Type) (cel.Program, *cel.Type) {
	if len(e.Text) > maxCEL {
		c.invalid(requirement.Expression{Text: e.Text[:64] + "…", At: e.At},
			fmt.Sprintf("has more than %d bytes", maxCEL))
		return nil, nil
	}
	checked, issues := c.env.Compile(e.Text)
	if issues.Err() != nil {
		var texts []string
		for _, i := range issues.Errors() {
			text := strings.ReplaceAll(strings.TrimSpace(i.Message), "\n", " ")
			texts = append(texts, fmt.Sprintf("%d:%d: %s", i.Location.Line(), i.Location.Column()+1, text))
		}
		c.invalid(e, strings.Join(texts, "; ")+"; known are "+c.known())
		return nil, nil
	}
	t := checked.OutputType()
	isText := want == cel.StringType && t.IsExactType(cel.DynType)
	if want != nil && !t.IsExactType(want) && !isText {
		c.invalid(e, fmt.Sprintf("must be of type %s, and is of type %s", want, t))
		return nil, nil
	}
	if why := misuse(checked.NativeRep()); why != "" {
		c.invalid(e, why)
		return nil, nil
	}
	p, err := c.env.Program(checked, cel.CostLimit(costOfOne), cel.InterruptCheckFrequency(interruptEvery),
		cel.CostTracking(costs{}), cel.CustomDecoratorV2(bounded))
	if err != nil {
		c.invalid(e, err.Error())
		return nil, nil
	}
	return p, t
}

// known returns the names of variables and functions that expressions can have beside those of CEL.
func (c *celCompiler) known() string {
	names := map[string]bool{}
	for _, v := range c.env.Variables() {
		names[v.Name()] = true
	}
	for name := range c.env.Functions() {
		if slices.Contains(ownFunctions(), name) {
			names[name] = true
		}
	}
	maps.DeleteFunc(names, func(name string, _ bool) bool { return strings.HasPrefix(name, "google.") || celTypes[name] })
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// newEnv returns an environment with what expressions of Kubernetes have and what returns no more than it reads.
func newEnv(options []cel.EnvOption, more ...cel.EnvOption) (*cel.Env, error) {
	return cel.NewEnv(slices.Concat([]cel.EnvOption{
		cel.OptionalTypes(), cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true),
		cel.DefaultUTCTimeZone(true), cel.CrossTypeNumericComparisons(true),
		cel.ParserRecursionLimit(maxNested), cel.ParserExpressionSizeLimit(maxCEL),
	}, options, more)...)
}

// inspect checks the names that an expression has, and whether a validation of images says the same about all images of
// a pod together as about each of them.
func (c *celCompiler) inspect(e requirement.Expression, decides bool) {
	parsed, issues := c.parser.Parse(e.Text)
	if issues.Err() != nil {
		c.invalid(e, issues.Err().Error())
		return
	}
	root := parsed.NativeRep().Expr()
	c.readsNames(e, root)
	c.readsKnown(e, root)
	if !decides {
		c.vars[e.Name] = knownVariable{
			root, c.readsImages(root), c.readsPayload(root), c.list(root), c.separable(root),
		}
	}
	if decides && !c.from.OnPods && slices.ContainsFunc(c.from.Validations, func(v requirement.Expression) bool {
		return v.At == e.At
	}) && !c.separable(root) {
		c.invalid(e, "a node judges each image by itself: must be LIST.all(image, …) or LIST.map(image, …).all(…), "+
			"joined by &&, in which LIST is images.containers, images.initContainers or images.ephemeralContainers, or a "+
			"sum of them; write what is about several images over object, which the webhook judges")
	}
}

// readsNames checks the names of attestors, of attestations and of what a request has.
func (c *celCompiler) readsNames(e requirement.Expression, root ast.Expr) {
	known := map[string][]string{"request": {"namespace", "object", "operation"}, "images": imageLists()}
	if c.from.Request != nil {
		known["request"] = slices.Clone(c.from.Request)
	}
	for _, v := range c.from.Evidence {
		known["attestors"] = append(known["attestors"], v.Attestor)
		if v.Attestation != "" {
			known["attestations"] = append(known["attestations"], v.Attestation)
		}
	}
	visit(root, func(x ast.Expr) bool {
		of, name, isName := member(x)
		if call, ok := called(x, ""); ok {
			c.readsImage = c.readsImage || call == "getImageData" || call == "GetMetadata"
			c.readsClock = c.readsClock || call == "now"
			if args := x.AsCall().Args(); call == "extractPayload" && len(args) == 2 {
				names := known["attestations"]
				if of, name, ok := member(args[1]); ok && of == "attestations" {
					names = []string{name}
				}
				c.payloads = append(c.payloads, names...)
			} else if call == "verifyAttestationSignatures" && len(args) == 3 {
				c.asks(args[1], args[2])
			} else if call == celop.LogicalNot && c.readsPayload(args[0]) {
				c.invalid(e, "must not negate what extractPayload returns: of several statements one must meet the "+
					"validations, and an older one could; write what must be true, as in p.passed == true")
			}
		}
		switch {
		case isName && known[of] == nil:
		case isName && !slices.Contains(known[of], name):
			slices.Sort(known[of])
			c.invalid(e, fmt.Sprintf("%s has no %s; it has %s", of, name, strings.Join(slices.Compact(known[of]), ", ")))
			return false
		case isName:
			return false
		case x.Kind() == ast.IdentKind && known[x.AsIdent()] != nil:
			c.invalid(e, "must name one of "+x.AsIdent()+", as in "+x.AsIdent()+".NAME")
		}
		return true
	})
	slices.Sort(c.payloads)
	c.payloads = slices.Compact(c.payloads)
}

// asks notes who must have signed an attestation.
func (c *celCompiler) asks(attestation, by ast.Expr) {
	of, name, ok := member(by)
	for ok && of == "variables" && c.vars[name].raw != nil {
		by = c.vars[name].raw
		of, name, ok = member(by)
	}
	names := []string{""}
	if by.Kind() == ast.ListKind && by.AsList().Size() == 1 {
		if of, name, ok := member(by.AsList().Elements()[0]); ok && of == "attestors" {
			names = []string{name}
		}
	}
	key := ""
	if of, name, ok := member(attestation); ok && of == "attestations" {
		key = name
	}
	c.signers[key] = append(c.signers[key], names...)
}

// oneSigner checks that one attestor signs an attestation whose content is read: the content is that of one statement,
// and what is counted would be about several.
func (c *celCompiler) oneSigner() {
	for _, name := range c.payloads {
		signers := slices.Concat(c.signers[name], c.signers[""])
		slices.Sort(signers)
		if signers = slices.Compact(signers); len(signers) > 1 || len(signers) == 1 && signers[0] == "" {
			c.errs = append(c.errs, field.Invalid(field.NewPath("spec", "validations"), name, "extractPayload reads one "+
				"statement of the attestation, so that every verifyAttestationSignatures about it must have the same "+
				"[attestors.NAME]; write an attestation of the same type for each attestor"))
		}
	}
}

// readsPayload reports whether an expression reads the content of a statement.
func (c *celCompiler) readsPayload(root ast.Expr) (reads bool) {
	visit(root, func(x ast.Expr) bool {
		_, call := called(x, "extractPayload")
		reads = reads || call
		of, name, ok := member(x)
		reads = reads || ok && of == "variables" && c.vars[name].payload
		return !reads
	})
	return reads
}

// pattern returns why a regular expression is not accepted; "" if it is. It must be known when it is compiled.
func pattern(x ast.Expr) string {
	if x.Kind() != ast.LiteralKind {
		return "matches: must have the regular expression itself, and not a value"
	}
	text, _ := x.AsLiteral().Value().(string)
	size, err := programSize(text)
	switch {
	case err != nil:
		return "matches: " + err.Error()
	case size > maxRegexp:
		return fmt.Sprintf("matches: the program of the regular expression has %d instructions; must have at most %d",
			size, maxRegexp)
	}
	return ""
}

// programSize is RegexProgramSize of cel-go, which panics if the expression has repetitions.
func programSize(text string) (int, error) {
	parsed, err := resyntax.Parse(text, resyntax.Perl)
	if err != nil {
		return 0, err
	}
	p, err := resyntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	return len(p.Inst), nil
}

// readsImages reports whether an expression depends on the list of images, or on a variable that does.
func (c *celCompiler) readsImages(root ast.Expr) (reads bool) {
	visit(root, func(x ast.Expr) bool {
		of, name, ok := member(x)
		reads = reads || x.Kind() == ast.IdentKind && x.AsIdent() == "images" ||
			ok && of == "variables" && c.vars[name].images
		return true
	})
	return reads
}

// separable reports whether an expression is true for several images if and only if it is for each of them.
func (c *celCompiler) separable(x ast.Expr) bool {
	if of, name, ok := member(x); ok && of == "variables" {
		return c.vars[name].separable
	}
	if x.Kind() == ast.LiteralKind {
		return x.AsLiteral() == types.True
	}
	if x.Kind() != ast.CallKind {
		return false
	}
	args := x.AsCall().Args()
	switch call := x.AsCall(); {
	case call.FunctionName() == celop.LogicalAnd:
		return c.separable(args[0]) && c.separable(args[1])
	case call.FunctionName() == celop.LogicalNot && len(args) == 1:
		inner, ok := called(args[0], "exists")
		return ok && inner != "" && c.each(args[0])
	case call.FunctionName() == "all":
		return c.each(x)
	}
	return false
}

// each reports whether a macro is applied to a list of images, and its body is about one of them.
func (c *celCompiler) each(x ast.Expr) bool {
	call := x.AsCall()
	if !call.IsMemberFunction() || len(call.Args()) < 2 || !c.list(call.Target()) {
		return false
	}
	return !slices.ContainsFunc(call.Args(), c.readsImages)
}

// list reports whether an expression is a list with one element, or none, for each image.
func (c *celCompiler) list(x ast.Expr) bool {
	if of, name, ok := member(x); ok {
		return of == "images" || of == "variables" && c.vars[name].list
	}
	name, ok := called(x, "")
	if !ok {
		return false
	}
	call := x.AsCall()
	switch name {
	case celop.Add:
		return len(call.Args()) == 2 && c.list(call.Args()[0]) && c.list(call.Args()[1])
	case "map", "filter":
		return c.each(x)
	case "orValue":
		empty := len(call.Args()) == 1 && call.Args()[0].Kind() == ast.ListKind && call.Args()[0].AsList().Size() == 0
		return call.IsMemberFunction() && empty && c.list(call.Target())
	}
	return false
}

// member returns the names of an expression such as attestors.a, attestors["a"] and attestors.?a.
func member(x ast.Expr) (of, name string, ok bool) {
	var operand, key ast.Expr
	switch x.Kind() { //nolint:exhaustive // the others have no members
	case ast.SelectKind:
		operand, name = x.AsSelect().Operand(), x.AsSelect().FieldName()
	case ast.CallKind:
		call := x.AsCall()
		if !slices.Contains([]string{celop.Index, celop.OptIndex, celop.OptSelect}, call.FunctionName()) {
			return "", "", false
		}
		operand, key = call.Args()[0], call.Args()[1]
		if key.Kind() != ast.LiteralKind {
			return "", "", false
		}
		text, isText := key.AsLiteral().Value().(string)
		if name = text; !isText {
			return "", "", false
		}
	default:
		return "", "", false
	}
	if operand.Kind() != ast.IdentKind {
		return "", "", false
	}
	return operand.AsIdent(), name, true
}

// called returns the name of the function of a call, which must be name unless that is "".
func called(x ast.Expr, name string) (string, bool) {
	if x.Kind() != ast.CallKind {
		return "", false
	}
	function := x.AsCall().FunctionName()
	return function, name == "" || name == function
}

// visit calls f for an expression, and for its parts if f returns true. The expression has no macros that are expanded.
func visit(x ast.Expr, f func(ast.Expr) bool) {
	if !f(x) {
		return
	}
	switch x.Kind() { //nolint:exhaustive // the others have no parts
	case ast.SelectKind:
		visit(x.AsSelect().Operand(), f)
	case ast.ListKind:
		for _, e := range x.AsList().Elements() {
			visit(e, f)
		}
	case ast.MapKind:
		for _, e := range x.AsMap().Entries() {
			visit(e.AsMapEntry().Key(), f)
			visit(e.AsMapEntry().Value(), f)
		}
	case ast.StructKind:
		for _, e := range x.AsStruct().Fields() {
			visit(e.AsStructField().Value(), f)
		}
	case ast.CallKind:
		if x.AsCall().IsMemberFunction() {
			visit(x.AsCall().Target(), f)
		}
		for _, a := range x.AsCall().Args() {
			visit(a, f)
		}
	}
}
