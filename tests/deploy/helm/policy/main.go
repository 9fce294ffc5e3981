// SPDX-License-Identifier: Apache-2.0

// Applies a MutatingAdmissionPolicy to pods as an API server does, with Kubernetes' own evaluator.
//
// It reads {"policy": ..., "pods": [...]} (JSON), and writes the pods as they become.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/google/cel-go/common/types"
	admissionregistration "k8s.io/api/admissionregistration/v1beta1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
)

type asked struct {
	Policy admissionregistration.MutatingAdmissionPolicy `json:"policy"`
	Pods   []core.Pod                                    `json:"pods"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var given asked
	reader := json.NewDecoder(os.Stdin)
	reader.DisallowUnknownFields()
	if err := reader.Decode(&given); err != nil {
		return err
	}
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion(), true)
	compiler, err := cel.NewCompositedCompiler(base)
	if err != nil {
		return err
	}
	spec := given.Policy.Spec
	options := cel.OptionalVariableDeclarations{StrictCost: true}
	conditions := make([]cel.ExpressionAccessor, len(spec.MatchConditions))
	for i := range spec.MatchConditions {
		conditions[i] = (*matchconditions.MatchCondition)(&spec.MatchConditions[i])
	}
	matcher := compiler.CompileCondition(conditions, options, environment.StoredExpressions)
	if err := errors.Join(matcher.CompilationErrors()...); err != nil {
		return err
	}
	options.HasPatchTypes = true
	expression := &patch.JSONPatchCondition{Expression: spec.Mutations[0].JSONPatch.Expression}
	patcher := patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(expression, options, environment.StoredExpressions))
	changed := []runtime.Object{}
	for i := range given.Pods {
		pod, err := applied(matcher, patcher, &given.Pods[i])
		if err != nil {
			return err
		}
		changed = append(changed, pod)
	}
	return json.NewEncoder(os.Stdout).Encode(changed)
}

func applied(matcher cel.ConditionEvaluator, patcher patch.Patcher, pod *core.Pod) (runtime.Object, error) {
	kind, resource := core.SchemeGroupVersion.WithKind("Pod"), core.SchemeGroupVersion.WithResource("pods")
	attributes := admission.NewAttributesRecord(
		pod, nil, kind, pod.Namespace, pod.Name, resource, "", admission.Create, &meta.CreateOptions{}, false, nil)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind, VersionedObject: pod}
	asked := cel.CreateAdmissionRequest(attributes, meta.GroupVersionResource(resource), meta.GroupVersionKind(kind))
	none, budget := cel.OptionalVariableBindings{}, int64(celconfig.RuntimeCELCostBudget)
	results, _, err := matcher.ForInput(context.Background(), versioned, asked, none, nil, budget)
	if err != nil {
		return nil, err
	}
	for _, result := range results {
		if result.Error != nil {
			return nil, result.Error
		}
		if result.EvalResult != types.True {
			return pod, nil
		}
	}
	return patcher.Patch(context.Background(), patch.Request{
		MatchedResource:     resource,
		VersionedAttributes: versioned,
		ObjectInterfaces:    admission.NewObjectInterfacesFromScheme(scheme.Scheme),
	}, budget)
}
