package condition

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/pullgate/pullgate/pkg/imageref"
)

// The types of values that expressions cannot look into. An image is one in a condition on images: it has no tag and no
// digest, because a node finds what was verified under another name too.
//
//nolint:gochecknoglobals // constants
var (
	celImage     = cel.ObjectType("pullgate.Image")
	celReference = cel.ObjectType("pullgate.ImageReference")
	celAttestor  = cel.ObjectType("pullgate.Attestor")
	celTypes     = map[string]bool{celImage.TypeName(): true, celReference.TypeName(): true, celAttestor.TypeName(): true}
)

// An opaque is a value of one of these types: a name as it is written, or an attestor by its name.
type opaque struct {
	kind *cel.Type
	text string
	in   *evaluationOfImage // of celImage
}

// ConvertToNative returns an error.
func (o opaque) ConvertToNative(reflect.Type) (any, error) {
	return nil, errors.New("has no other form")
}

// ConvertToType returns the type of the value, and otherwise an error.
func (o opaque) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return o.kind
	}
	return types.NewErr("%s has no other form", o.kind.TypeName())
}

// Equal reports whether both have the same text. With a value of another type it is an error, and not false.
func (o opaque) Equal(other ref.Val) ref.Val {
	if v, ok := other.(opaque); ok && o.kind == v.kind {
		return types.Bool(o.text == v.text)
	}
	return types.MaybeNoSuchOverloadErr(other)
}

// Type returns the type.
func (o opaque) Type() ref.Type { return o.kind }

// Value returns the text.
func (o opaque) Value() any { return o.text }

func imageLists() []string { return []string{"containers", "ephemeralContainers", "initContainers"} }

func ownFunctions() []string {
	return []string{
		"verifyImageSignatures", "verifyAttestationSignatures", "extractPayload", "getImageData", "image.GetMetadata",
		"parseImageReference", "image", "isImage", "registry", "repository", "tag", "digest", "identifier",
		"identifierWithSeparator", "containsDigest", "time.now",
	}
}

func function(name string, arguments []*cel.Type, result *cel.Type, f func(...ref.Val) ref.Val) cel.EnvOption {
	return cel.Function(name, cel.Overload("pullgate_"+strings.ReplaceAll(name, ".", "_"), arguments, result,
		cel.FunctionBinding(f)))
}

func method(name string, of, result *cel.Type, f func(text string) ref.Val) cel.EnvOption {
	return cel.Function(name, cel.MemberOverload("pullgate_of_"+name, []*cel.Type{of}, result,
		cel.UnaryBinding(func(v ref.Val) ref.Val {
			o, ok := v.(opaque)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			return f(o.text)
		})))
}

// imageFunctions are about the repository of an image, which is given as a text or as a celImage.
func imageFunctions(image *cel.Type) []cel.EnvOption {
	parse := func(v ...ref.Val) ref.Val {
		text, _ := v[0].Value().(string)
		if _, err := imageref.Parse(text); err != nil {
			return types.WrapErr(err)
		}
		return opaque{kind: celReference, text: text}
	}
	options := []cel.EnvOption{
		function("parseImageReference", []*cel.Type{image}, celReference, parse),
		function("image", []*cel.Type{image}, celReference, parse),
		method("registry", celReference, cel.StringType, func(text string) ref.Val {
			host, _ := repositoryOf(text)
			return types.String(host)
		}),
		method("repository", celReference, cel.StringType, func(text string) ref.Val {
			_, path := repositoryOf(text)
			return types.String(path)
		}),
	}
	if image == celImage {
		options = append(options, cel.Function("startsWith", cel.MemberOverload("pullgate_image_starts_with",
			[]*cel.Type{celImage, cel.StringType}, cel.BoolType, cel.BinaryBinding(startsWith))))
	}
	return options
}

// clock is for expressions whose result is not kept for long.
func clock() []cel.EnvOption {
	return []cel.EnvOption{function("time.now", nil, cel.TimestampType, func(...ref.Val) ref.Val {
		return types.Timestamp{Time: time.Now()}
	})}
}

// repositoryOf returns the parts of a name as Kyverno names them.
func repositoryOf(text string) (host, path string) {
	n, err := imageref.Parse(text)
	if err != nil {
		return "", ""
	}
	host, path, _ = strings.Cut(n.Repository(), "/")
	return registryOf(host), path
}

// registryOf returns the name of a registry in Kyverno, where that of docker.io is its host.
func registryOf(host string) string {
	if host = imageref.CanonicalRegistry(host); slices.Contains(imageref.DockerHub(), host) {
		return "index.docker.io"
	}
	return host
}

// startsWith compares the repository of an image, whose tag does not count, with a prefix; see prefixOf.
func startsWith(v, prefix ref.Val) ref.Val {
	o, isImage := v.(opaque)
	text, isText := prefix.Value().(string)
	registry, start, ok := prefixOf(text)
	if !isImage || !isText || !ok {
		return types.MaybeNoSuchOverloadErr(v)
	}
	host, path := repositoryOf(o.text)
	return types.Bool(host == registry && strings.HasPrefix(path, start))
}

// prefixOf returns the parts of a prefix of images: a registry and the beginning of a repository.
func prefixOf(text string) (registry, path string, ok bool) {
	host, path, below := strings.Cut(text, "/")
	host = registryOf(host)
	known := strings.ContainsAny(host, ".:") || host == "localhost"
	return host, path, below && known && !strings.ContainsAny(path, ":@")
}

// misuse returns why an expression says something else about images than it seems to; "" if it does not. A value whose
// type is not known is never equal to an image.
func misuse(checked *ast.AST) (why string) {
	has := func(list []ast.Expr, is func(*types.Type) bool) bool {
		return slices.ContainsFunc(list, func(x ast.Expr) bool {
			known := x.Kind() == ast.LiteralKind || x.Kind() == ast.ListKind && x.AsList().Size() == 0
			return !known && containsType(checked.GetType(x.ID()), is)
		})
	}
	opaque := func(t *types.Type) bool { return celTypes[t.TypeName()] }
	dynamic := func(t *types.Type) bool { return t.Kind() == types.DynKind }
	ast.PreOrderVisit(checked.Expr(), ast.NewExprVisitor(func(x ast.Expr) {
		var parts []ast.Expr
		name := ""
		switch x.Kind() { //nolint:exhaustive // the others have no parts beside each other
		case ast.CallKind:
			call := x.AsCall()
			if name, parts = call.FunctionName(), call.Args(); call.IsMemberFunction() {
				parts = append([]ast.Expr{call.Target()}, parts...)
			}
		case ast.ListKind:
			parts = x.AsList().Elements()
		case ast.MapKind:
			for _, e := range x.AsMap().Entries() {
				parts = append(parts, e.AsMapEntry().Key(), e.AsMapEntry().Value())
			}
		}
		switch {
		case name == "matches":
			why = cmp.Or(pattern(parts[len(parts)-1]), why)
		case !has(parts, opaque):
		case name == "dyn" || name == "type" || has(parts, dynamic):
			why = "must not use an image, a reference or an attestor where the type is not known, as with dyn, type, or a " +
				"value of a document"
		case name == "startsWith":
			text, isText := "", parts[1].Kind() == ast.LiteralKind
			if isText {
				text, _ = parts[1].AsLiteral().Value().(string)
			}
			if _, _, ok := prefixOf(text); !ok {
				why = "startsWith: an image begins with its registry, and has no tag or digest here: write a text as in " +
					"'repo.test/team/'"
			}
		}
	}))
	return why
}

func containsType(t *types.Type, is func(*types.Type) bool) bool {
	inside := func(p *types.Type) bool { return containsType(p, is) }
	return t != nil && (is(t) || slices.ContainsFunc(t.Parameters(), inside))
}

// podFunctions are what conditions on pods have.
func podFunctions() []cel.EnvOption {
	parts := func(text string) (tag, digest string) {
		n, err := imageref.Parse(text)
		switch {
		case err != nil:
		case n.IsDigest():
			return "", n.Digest()
		default:
			tag = strings.TrimPrefix(n.String(), n.Repository()+":")
		}
		return tag, ""
	}
	options := []cel.EnvOption{
		cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType),
		cel.Variable("request", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("images", cel.MapType(cel.StringType, cel.ListType(cel.StringType))),
		function("isImage", []*cel.Type{cel.StringType}, cel.BoolType, func(v ...ref.Val) ref.Val {
			text, _ := v[0].Value().(string)
			_, err := imageref.Parse(text)
			return types.Bool(err == nil)
		}),
		method("containsDigest", celReference, cel.BoolType, func(text string) ref.Val {
			_, digest := parts(text)
			return types.Bool(digest != "")
		}),
	}
	for name, f := range map[string]func(tag, digest string) string{
		"tag":        func(tag, _ string) string { return tag },
		"digest":     func(_, digest string) string { return digest },
		"identifier": func(tag, digest string) string { return tag + digest },
	} {
		options = append(options, method(name, celReference, cel.StringType, func(text string) ref.Val {
			return types.String(f(parts(text)))
		}))
	}
	return options
}

// evidenceFunctions are what conditions on images have.
func evidenceFunctions() []cel.EnvOption {
	attestors := cel.ListType(celAttestor)
	return []cel.EnvOption{
		cel.Variable("images", cel.MapType(cel.StringType, cel.ListType(celImage))),
		cel.Variable("attestors", cel.MapType(cel.StringType, celAttestor)),
		cel.Variable("attestations", cel.MapType(cel.StringType, cel.StringType)),
		function("verifyImageSignatures", []*cel.Type{celImage, attestors}, cel.IntType, func(v ...ref.Val) ref.Val {
			return of(v[0]).verify("", v[1])
		}),
		function("verifyAttestationSignatures", []*cel.Type{celImage, cel.StringType, attestors}, cel.IntType,
			func(v ...ref.Val) ref.Val {
				name, _ := v[1].Value().(string)
				return of(v[0]).verify(name, v[2])
			}),
		function("extractPayload", []*cel.Type{celImage, cel.StringType}, cel.DynType, func(v ...ref.Val) ref.Val {
			name, _ := v[1].Value().(string)
			return of(v[0]).payload(name)
		}),
		function("getImageData", []*cel.Type{celImage}, cel.DynType, data),
		function("image.GetMetadata", []*cel.Type{celImage}, cel.DynType, data),
	}
}

func of(v ref.Val) *evaluationOfImage {
	o, _ := v.(opaque) // the type is checked
	return o.in
}

func data(v ...ref.Val) ref.Val { return types.DefaultTypeAdapter.NativeToValue(of(v[0]).Documents) }

// verify returns how many attestors of a list have signed the image, or a statement.
func (e *evaluationOfImage) verify(attestation string, list ref.Val) ref.Val {
	l, ok := list.(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(list)
	}
	if size, _ := l.Size().Value().(int64); size > maxExpressions {
		return types.NewErr("must name at most %d attestors", maxExpressions)
	}
	counted := map[string]bool{}
	var missing []string
	for i := l.Iterator(); i.HasNext() == types.True; {
		name, _ := i.Next().Value().(string)
		has := e.Signed[name]
		if attestation != "" {
			has = slices.ContainsFunc(e.Statements[attestation], func(s Said) bool { return slices.Contains(s.By, name) })
		}
		switch {
		case !has:
			missing = append(missing, name)
			if lack := (Lack{name, attestation}); !slices.Contains(e.lacks, lack) {
				e.lacks = append(e.lacks, lack)
			}
		case attestation != "" && !slices.Contains(e.verified[attestation], name):
			e.verified[attestation] = append(e.verified[attestation], name)
		}
		if has {
			counted[name] = true
		}
	}
	e.counted = e.counted || len(counted) > 0
	if len(missing) > 0 {
		what := "no signature"
		if attestation != "" {
			what = "no attestation " + attestation
		}
		if len(e.notes) < maxExpressions {
			e.notes = append(e.notes, fmt.Sprintf("%s by %s", what, strings.Join(missing, ", ")))
		}
	}
	return types.Int(len(counted))
}

// payload returns the statement that is looked at, if an attestor has signed it for whom that was verified.
func (e *evaluationOfImage) payload(attestation string) ref.Val {
	said, ok := e.chosen[attestation]
	if !ok || !slices.ContainsFunc(said.By, func(name string) bool {
		return slices.Contains(e.verified[attestation], name)
	}) {
		return types.NewErr("extractPayload: %s has not been found by verifyAttestationSignatures before", attestation)
	}
	return types.DefaultTypeAdapter.NativeToValue(said.Document)
}
