# A customer signs up. The same tree as FLOW in onboarding.py: a test compares them.
@durable(retries: 2)
flow onboarding
  emit "Welcome! What is your name?"
  await name = "customer"

  emit "Hello {name}. What is your e-mail address?"
  await address = "customer"
  valid = mail.looks_right(address)
  unless valid
    emit "That does not look like an e-mail address. What is it?"
  await address = "customer", when: !valid
  valid = mail.looks_right(address)
  assert valid, "that is no e-mail address either"
  once "welcome"
    mail.welcome(name, address)

  memo prices = plans.prices()
  emit "Which plan: basic for {prices.basic} or pro for {prices.pro} a month?"
  await plan = "customer"
  when plan == "pro"
    price = prices.pro
  else
    assert plan == "basic", "there are two plans, basic and pro"
    price = prices.basic

  try
    scope lock = lock.take(address)
      saga
        step
          receipt = bank.charge(address, price)
        undo
          bank.refund(receipt)
        step
          slot = calendar.book(address)
        undo
          calendar.cancel(slot)
        step
          accounts.open(address, plan, receipt)
    finally
      lock.release(lock)
  catch why
    return "You are not signed up: {why}"

  checkpoint "signed up"
  emit "You are on the {plan} plan, {name}. We call you {slot}."
