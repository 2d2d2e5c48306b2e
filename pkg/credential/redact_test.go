package credential_test

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2/textlogger"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

const canary = "cAnary-Of-The-Mine"

func verbs() []string {
	return strings.Fields("%v %+v %#v %s %+s %#s %d %+d %x %X %#x %q %+q %#q %p %#p %c %U %#U %e %E %f %g %t %b %o %O " +
		"%w %z")
}

// shapesOf wraps a value in all types in which a caller may have it.
func shapesOf[T any](v T) map[string]any {
	p := &v
	return map[string]any{
		"value": v, "pointer": p, "pointer to pointer": &p,
		"struct":                       struct{ Exported T }{v},
		"unexported field":             struct{ unexported T }{v},
		"unexported pointer":           struct{ unexported *T }{p},
		"pointer to struct":            &struct{ Exported, unexported T }{v, v},
		"struct with pointer":          &struct{ Exported *T }{p},
		"embedded":                     struct{ inner[T] }{inner[T]{v, v}},
		"slice":                        []T{v},
		"slice of pointers":            []*T{p},
		"array":                        [1]T{v},
		"slice of any":                 []any{v, p},
		"map":                          map[string]T{"k": v},
		"map of pointers":              map[string]*T{"k": p},
		"map of slices in a struct":    struct{ m map[string][]*T }{map[string][]*T{"k": {p}}},
		"interface in a struct":        struct{ a any }{v},
		"exported interface in struct": struct{ A any }{p},
	}
}

type inner[T any] struct {
	Exported   T
	unexported T
}

// renderings returns every text form of a value, by the method that made it.
func renderings(v any) map[string]string {
	out := map[string]string{
		"Sprint":   fmt.Sprint(v),
		"Sprintln": fmt.Sprintln("x", v),
		"Errorf":   fmt.Errorf("x: %v", v).Error(),
	}
	for _, verb := range verbs() {
		out[verb] = fmt.Sprintf(verb, v)
	}
	encode := func(name string, data []byte, err error) { out[name] = fmt.Sprintf("%s %v", data, err) }
	data, err := json.Marshal(v)
	encode("JSON", data, err)
	data, err = yaml.Marshal(v)
	encode("YAML", data, err)
	data, err = xml.Marshal(v)
	encode("XML", data, err)
	if m, ok := v.(encoding.TextMarshaler); ok {
		data, err = m.MarshalText()
		encode("text", data, err)
	}

	var b bytes.Buffer
	log := func(name string, l logr.Logger) {
		b.Reset()
		l.Info("Message", "key", v)
		l.WithValues("key", v).Error(fmt.Errorf("error: %v", v), "Message")
		out[name] = b.String()
	}
	log("klog text", textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&b))))
	log("slog JSON through logr", logr.FromSlogHandler(slog.NewJSONHandler(&b, nil)))
	log("slog text through logr", logr.FromSlogHandler(slog.NewTextHandler(&b, nil)))
	for name, h := range map[string]slog.Handler{
		"slog JSON": slog.NewJSONHandler(&b, nil),
		"slog text": slog.NewTextHandler(&b, nil),
	} {
		b.Reset()
		slog.New(h).With("key", v).WithGroup("g").Info("Message", "key", v, slog.Group("h", "key", v))
		out[name] = b.String()
	}
	return out
}

// formsOf returns the forms in which a secret may appear, by the name of the form.
func formsOf(secret []byte) map[string]string {
	forms := map[string]string{}
	for _, b := range [][]byte{secret, []byte(hex.EncodeToString(secret))} {
		for name, s := range map[string]string{
			"raw": string(b), "hex": hex.EncodeToString(b), "base64": base64.RawStdEncoding.EncodeToString(b),
			"base64url": base64.RawURLEncoding.EncodeToString(b),
			"Go":        strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", b), "[]byte{"), "}"),
		} {
			forms[name+" of "+string(b)] = s
		}
		for _, verb := range verbs() {
			if verb == "%p" || verb == "%#p" {
				continue // for bytes it prints an address
			}
			for _, v := range []any{b, string(b), []rune(string(b))} {
				if s := strings.Trim(fmt.Sprintf(verb, v), "[]"); len(s) > 8 {
					forms[fmt.Sprintf("%s of %T %s", verb, v, b)] = s
				}
			}
		}
	}
	for name, s := range forms {
		forms[name] = strings.ToLower(s)
	}
	return forms
}

// shown returns the form in which a text contains a secret, ignoring case; "" if it does not.
func shown(text string, forms map[string]string) string {
	text = strings.ToLower(text)
	for name, s := range forms {
		if strings.Contains(text, s) {
			return name
		}
	}
	return ""
}

func mustNotShow(t *testing.T, what string, secret []byte, shapes map[string]any) {
	t.Helper()
	forms := formsOf(secret)
	for shape, v := range shapes {
		for how, text := range renderings(v) {
			if form := shown(text, forms); form != "" {
				t.Errorf("%s as %s, by %s, shows the secret as %s: %s", what, shape, how, form, text)
			}
		}
	}
}

// Shows: 001-26
func TestNothingShowsACredential(t *testing.T) {
	for field, c := range map[string]credential.Credential{
		"username":      credential.New(credential.Login{Username: canary, Password: "p"}),
		"password":      credential.New(credential.Login{Username: "u", Password: canary}),
		"auth":          credential.New(credential.Login{Auth: base64.StdEncoding.EncodeToString([]byte("u:" + canary))}),
		"raw auth":      credential.New(credential.Login{Auth: canary}),
		"identityToken": credential.New(credential.Login{IdentityToken: canary}),
		"registryToken": credential.New(credential.Login{RegistryToken: canary}),
	} {
		mustNotShow(t, field, []byte(canary), shapesOf(c))
	}
}

func TestNothingShowsAConfiguration(t *testing.T) {
	for field, payload := range map[string]string{
		"username": fmt.Sprintf(`{"repo.test":{"username":%q,"password":"p"}}`, canary),
		"password": fmt.Sprintf(`{"repo.test":{"username":"u","password":%q}}`, canary),
		"auth":     fmt.Sprintf(`{"repo.test":{"auth":%q}}`, auth("u:"+canary)),
		"key":      fmt.Sprintf(`{"https://u:%s@repo.test/%s":{"username":"u","password":"p"}}`, canary, canary),
	} {
		sealed, err := credential.ParseDockercfg([]byte(payload), testKey)
		if err != nil || sealed.Len() != 1 {
			t.Fatalf("%s: %d entries, %v; want 1, nil", field, sealed.Len(), err)
		}
		mustNotShow(t, field+" sealed", []byte(canary), shapesOf(sealed))
		mustNotShow(t, field+" in a sealed keyring", []byte(canary),
			map[string]any{"keyring": credential.SealedKeyring{sealed}})
		for _, offer := range (credential.SealedKeyring{sealed}).Lookup("repo.test/" + canary) {
			mustNotShow(t, field+" as a sealed offer", []byte(canary), shapesOf(offer))
		}
	}
}

func TestErrorsShowNothingOfAPayload(t *testing.T) {
	for name, payload := range map[string]string{
		"no JSON":            canary,
		"cut off":            fmt.Sprintf(`{"auths":{"repo.test":{"password":%q`, canary),
		"another type":       fmt.Sprintf(`{"auths":{"repo.test":{"password":[%q]}}}`, canary),
		"auths of no object": fmt.Sprintf(`{"auths":%q}`, canary),
		"an entry's text":    fmt.Sprintf(`{"auths":{%q:%q}}`, canary, canary),
		"auth of no base64":  fmt.Sprintf(`{"auths":{"repo.test":{"auth":%q}}}`, canary),
		"auth of one field":  fmt.Sprintf(`{"auths":{"repo.test":{"auth":%q}}}`, auth(canary)),
		"too large":          fmt.Sprintf(`{"auths":{%q:{}}}`, strings.Repeat(canary, credential.MaxPayload/len(canary))),
	} {
		c, err := credential.ParseDockerConfigJSON([]byte(payload), testKey)
		if err == nil || c.Len() != 0 {
			t.Errorf("%s: %d entries, %v; want an error", name, c.Len(), err)
			continue
		}
		mustNotShow(t, name, []byte(canary), map[string]any{"error": err, "text": err.Error()})
		for wrapped := err; wrapped != nil; wrapped = errors.Unwrap(wrapped) {
			mustNotShow(t, name, []byte(canary), map[string]any{"wrapped": wrapped.Error()})
		}
	}
}

func TestNothingShowsAKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	created := testkit.Value(credential.CreateKey(path))(t)
	text := testkit.Value(os.ReadFile(path))(t)
	secret := testkit.Value(hex.DecodeString(strings.TrimSpace(string(text))))(t)
	loaded := testkit.Value(credential.LoadKey(path))(t)
	mustNotShow(t, "created key", secret, shapesOf(created))
	mustNotShow(t, "loaded key", secret, shapesOf(loaded))
	for name, s := range map[string]string{
		"fingerprint": loaded.Fingerprint(),
		"ID":          string(loaded.ID(credential.New(credential.Login{Username: "u", Password: canary}))),
	} {
		if shown(s, formsOf(secret)) != "" || shown(s, formsOf([]byte(canary))) != "" {
			t.Errorf("%s %s shows the key or the credential", name, s)
		}
	}
}

func TestRedactedIsWhatIsShown(t *testing.T) {
	for name, v := range map[string]any{
		"credential": credential.New(credential.Login{Username: "u", Password: canary}), "anonymous": credential.Credential{},
		"key": credential.NewKey(), "zero key": credential.Key{},
		"zero sealed configuration": credential.Sealed{},
		"sealed configuration":      credential.NewSealed([]string{canary}, "id"),
	} {
		for how, text := range renderings(v) {
			switch how {
			case "%p", "%#p", "%w": // these call no method; they show the address of a function
			default:
				if !strings.Contains(text, "[redacted]") {
					t.Errorf("%s by %s is %q; want [redacted]", name, how, text)
				}
			}
		}
	}
}

// leaky is what Credential must not become: secrets without protection behind a String method.
type leaky struct {
	bytes []byte
	text  string
}

func (leaky) String() string { return "[redacted]" }

// The tests above depend on shown, so this checks that it finds leaks.
func TestShownFindsWhatLeaks(t *testing.T) {
	forms := formsOf([]byte(canary))
	for _, v := range []leaky{{bytes: []byte(canary)}, {text: canary}} {
		for verb := range strings.FieldsSeq("%v %+v %#v %s %d %x %X %q %c %U %e %t") {
			if text := fmt.Sprintf(verb, struct{ unexported leaky }{v}); shown(text, forms) == "" {
				t.Errorf("nothing is found in %q, by %s", text, verb)
			}
		}
	}
	for _, text := range []string{"x" + auth(canary), strings.ToUpper(hex.EncodeToString([]byte(canary)))} {
		if shown(text, forms) == "" {
			t.Errorf("nothing is found in %q", text)
		}
	}
}
